# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One call: its text, its key, and checks of its tensors and of the thread's state."""
