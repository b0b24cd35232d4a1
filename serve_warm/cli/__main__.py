# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m serve_warm.cli`."""

from serve_warm.cli import main

if __name__ == "__main__":
    main()
