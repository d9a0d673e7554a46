"""One file an attack, each with one named ``ATTACK``."""
