"""Every exception of Forewarn: one root, five families by what the caller can do about it.

The docstring of a class is its message, filled in with the fields it is raised with. Families, not
single errors, decide the HTTP status and the exit code. One module per kind; all are had from here.
"""

from forewarn.errors.agent import *
from forewarn.errors.conflict import *
from forewarn.errors.families import *
from forewarn.errors.invalid import *
from forewarn.errors.missing import *
from forewarn.errors.refusal import *
