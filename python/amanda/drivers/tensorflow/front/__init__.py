"""Where programs enter: sessions, functions, exports."""
