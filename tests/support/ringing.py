"""The head of scripts in which a signal's handler raises at a moment that nobody chose: `Rung`, while `armed`.

Such a script sets the timer, disarms in a `finally`, and runs without coverage, whose lock may be held just then.
"""

RINGING = """
import random, signal, time
from contextlib import suppress
class Rung(Exception): pass
armed, draw = False, random.Random(1)
def ring(*_):
    if armed: raise Rung
signal.signal(signal.SIGALRM, ring)
"""
