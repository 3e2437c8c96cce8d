"""The process of a stranger's template keeps its limits."""

from tests.programs import printed_by


def test_limits_that_a_person_has_set_stay():
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (900 << 20,) * 2); r.setrlimit(r.RLIMIT_CPU, (9, 9))\n"
    code += "from forgather_mem import ConfigEnvironment\n"
    code += "print(ConfigEnvironment().load_from_string('a: {{ 1 }}').construct())"
    assert printed_by(code) == "{'a': 1}\n"
