"""Cupcake's evaluation (Wang, Rice 2023, chapter 5), computed by the planner in `communication/`."""
