"""What must hold, and what could."""
