"""Output formats of tools: pandas tables, printed tables, Chrome traces."""
