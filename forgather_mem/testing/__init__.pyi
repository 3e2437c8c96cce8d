from forgather_mem.testing.sink_check import check_sink as check_sink
from forgather_mem.testing.work_check import check_work as check_work
