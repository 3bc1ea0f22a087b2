"""Faster ways to compute what the reference `attend` computes, behind the same signature."""
