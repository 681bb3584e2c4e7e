"""Client of the endpoint contract that loads pages in Chromium, with nothing but the standard library."""
