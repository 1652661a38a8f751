"""Views, by what they are about."""
