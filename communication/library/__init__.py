"""Published models and codecs, used without measurements. A job's own profile replaces them."""
