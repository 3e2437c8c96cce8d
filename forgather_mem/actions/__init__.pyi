from forgather_mem.actions.adaptive import Adaptive as Adaptive
from forgather_mem.actions.clear import ClearCache as ClearCache
from forgather_mem.actions.collect import Collect as Collect
from forgather_mem.actions.freeze import HeapHold as HeapHold
from forgather_mem.actions.trim import TrimHost as TrimHost
