"""What a person asks for, and how it is answered."""
