"""Espresso (Wang, Rice 2023, chapter 4): its published figures beside what its algorithms give here."""
