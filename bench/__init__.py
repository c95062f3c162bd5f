"""This package is all that times: `train bench`, `train data profile`, and `python -m bench` beside other programs."""
