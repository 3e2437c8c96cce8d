from forgather_mem.testing.part_checks import check_sink as check_sink
from forgather_mem.testing.part_checks import check_work as check_work
