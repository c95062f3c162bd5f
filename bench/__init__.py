"""This package is all that times: `train bench`, and beside other programs `python -m bench` of a checkout."""
