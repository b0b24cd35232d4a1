# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Takes over torch.compile in each replica of a wrapped class: importing this there is enough.

Serve sends such a class by value, and a replica loads its bases in their order. The first base is
defined here, so this runs before the user's modules are imported, and what they compile at module
level is taken too. In a process that is no replica, the import has no effect.
"""

from serve_warm.precompile.taking import take_compile
from serve_warm.private_apis.ray_serve import is_in_actor

if is_in_actor():
    take_compile()


class TakesCompile:
    """First base of each wrapped class."""
