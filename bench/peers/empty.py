"""Nothing: what a launcher takes for itself.

accelerate launch bench/peers/empty.py
"""
