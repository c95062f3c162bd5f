"""This package computes optimizer steps, each strategy in its own way: one rank, DDP, DataParallel, bitwise."""
