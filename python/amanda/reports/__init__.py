"""How tools hand out what they measured: pandas tables, printed tables, Chrome traces."""
