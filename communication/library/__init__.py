"""What is known without measuring: published models and codecs. A job's own profile replaces them."""
