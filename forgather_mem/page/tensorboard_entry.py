"""What TensorBoard loads from the entry point `tensorboard_plugins`: our tab, or nothing.

An entry point whose module raises keeps all of TensorBoard from starting. So this one imports nothing but the class to
derive from, and what goes wrong in loading the tab leaves TensorBoard as it is without us.
"""

from __future__ import annotations

import logging

try:
    from tensorboard.plugins.base_plugin import TBLoader
except Exception:  # noqa: BLE001  # a TensorBoard that is not as we know it
    TBLoader = object

logger = logging.getLogger(__name__)


class MemoryTabLoader(TBLoader):  # type: ignore[misc]
    """Loads the tab."""

    def load(self, context: object) -> object:
        """The tab, or None."""
        try:
            from forgather_mem.page.tensorboard_tab import MemoryTab

            return MemoryTab(context)
        except Exception as error:  # noqa: BLE001  # TensorBoard is for more than our tab
            logger.warning("forgather_mem shows no Memory tab in this TensorBoard: %r", error)
            return None
