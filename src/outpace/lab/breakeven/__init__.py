"""Does speculation pay? Arithmetic on figures that somebody measured; nothing here needs torch."""
