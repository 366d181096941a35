"""The release that this package belongs to."""
__version__ = "0.1.0"
