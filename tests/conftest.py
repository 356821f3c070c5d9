from hypothesis import settings

# A slow machine is no failure; a failure found once is printed so that it can be replayed anywhere.
settings.register_profile("remat", deadline=None, print_blob=True)
settings.load_profile("remat")
