"""Records in the user's words: names that transforms made become those of what they stand for.

    reduction into 't_x_acc' reassociated      becomes      reduction into 't' reassociated

Every name that a transform makes begins with the name of what it stands for (`nest.Names`): `C_acc` holds elements
of `C`, `j_1` counts a piece of loop `j`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from pyschedule.ir.nodes import Kernel
from pyschedule.ir.users_names import is_users
from pyschedule.ir.visitors import arrays, loops, variable_types
from pyschedule.schedule.log import Record

#: What transforms put behind a name, and the letters and numbers that tell one copy from another.
_BEHIND = r"(?:_(?:x|value|acc|wide|tile|v|tail|trips|once|left|[b-z]|\d+))+"


def in_users_words(records: Sequence[Record], source: Kernel) -> tuple[Record, ...]:
    """The records, with no name in them that only a transform's kernel has."""
    counters = {loop.var for loop in loops(source.body)}
    users = {loop.source for loop in loops(source.body)} | set(arrays(source))
    users |= {name for name in variable_types(source) if name not in counters}
    users = {name for name in users if name and is_users(name, source)}
    if not users:
        return tuple(records)
    either = "|".join(sorted(map(re.escape, users), key=len, reverse=True))
    # Files and directories are named by other people.
    made = re.compile(rf"(?<![\w/\\.-])({either}){_BEHIND}(?![\w/\\-]|\.py)")

    def worded(text: str) -> str:
        return made.sub(lambda match: match[0] if match[0] in users else match[1], text)

    return tuple(
        dataclasses.replace(
            record, summary=worded(record.summary), details=tuple(dict.fromkeys(map(worded, record.details)))
        )
        for record in records
    )
