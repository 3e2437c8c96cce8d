from forgather_mem.sinks.black_box import BlackBoxSink as BlackBoxSink
from forgather_mem.sinks.capture import Capture as Capture
from forgather_mem.sinks.console import ConsoleSink as ConsoleSink
from forgather_mem.sinks.jsonl import JsonlSink as JsonlSink
from forgather_mem.sinks.prometheus import PrometheusSink as PrometheusSink
from forgather_mem.sinks.tensorboard import TensorBoardSink as TensorBoardSink
from forgather_mem.sinks.trainer_log import TrainerLogSink as TrainerLogSink
