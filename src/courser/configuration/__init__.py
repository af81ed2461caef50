"""Keys of a configuration in general: their spellings, and how file, environment and command line set them."""
