"""Espresso: how, where and whether to compress each gradient of a model (Wang, Rice 2023, chapter 4)."""
