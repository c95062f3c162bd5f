"""What a user writes, as checked values, and what follows from it alone. No torch."""
