"""Attacks under which something falls, each in its own way: the proof that a runner of attacks sees it."""
