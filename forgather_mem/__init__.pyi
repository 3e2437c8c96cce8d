from forgather_mem.config.environment import Config as Config
from forgather_mem.config.environment import ConfigEnvironment as ConfigEnvironment
from forgather_mem.config.policy.policy import Policy as Policy
from forgather_mem.errors import PlanError as PlanError
from forgather_mem.errors import TemplateError as TemplateError
from forgather_mem.load import attach as attach
from forgather_mem.load import load_callbacks as load_callbacks
from forgather_mem.load import watch as watch
from forgather_mem.loops.training_loop import TrainingLoop as TrainingLoop
from forgather_mem.planning.entry import plan as plan
from forgather_mem.reclaim.release import cleanup as cleanup
from forgather_mem.reclaim.release import cleanup_after as cleanup_after
from forgather_mem.reclaim.release import release_memory as release_memory
from forgather_mem.reclaim.retry import retry_on_oom as retry_on_oom
from forgather_mem.telemetry.rule import Rule as Rule
from forgather_mem.telemetry.triggers import Above as Above
from forgather_mem.telemetry.triggers import AtEvent as AtEvent
from forgather_mem.telemetry.triggers import Below as Below
from forgather_mem.telemetry.triggers import Every as Every
from forgather_mem.trackers import BatchMemoryProfiler as BatchMemoryProfiler
from forgather_mem.trackers import EpochMemoryMonitor as EpochMemoryMonitor
from forgather_mem.trackers import MemoryMonitor as MemoryMonitor
from forgather_mem.trackers import MemoryTracker as MemoryTracker
from forgather_mem.trackers import monitor_memory as monitor_memory
from forgather_mem.trackers import track_memory as track_memory

__version__: str
