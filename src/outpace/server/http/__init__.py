"""What every request passes, whatever it asks: its connection, the observer, the guard; and how errors are told."""
