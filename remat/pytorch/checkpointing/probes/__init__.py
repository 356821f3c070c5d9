"""Probes: each runs one small region under a checkpoint function and reports what happened.

A probe takes the function under trial, called as ``checkpoint(function, *arguments, **options)``, and returns
a few words. None of them knows which function it was given.
"""
