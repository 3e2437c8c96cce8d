"""Templates that people write must load under the default policy, and give what they say."""

from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError

HERE = Path(__file__).parent
FILES = (HERE / "benign.yaml", HERE / "frozen_set" / "benign.yaml")  # nobody looked at the second while it was made
TEMPLATES = [template for file in FILES for template in yaml.load(file.read_text(), yaml.CSafeLoader)]
OF_TRANSFORMERS_5 = {"a project's name with two colons", "training arguments of a real run", "a folder with a drive"}
MISTAKEN = {
    "training arguments of a real run": "transformers 5.23 has no argument logging_dir",
    "a folder with a drive": "transformers 5.23 has no argument logging_dir",
    "an experiment by a title block": "a key that begins with a dot is no target",
    "filters that people use": "Jinja's truncate leaves a text that is up to 5 characters too long",
    "notes with signs of YAML and Jinja": "Jinja removes the newline behind {% endraw %}",
}
"""Templates of the second file, which stays as it is, that expect what transformers or Jinja don't do."""


def plain(value: object) -> object:
    """The value as YAML would write it, for the comparison with what is expected."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def at(value: Any, path: list[Any]) -> object:
    for step in path:
        value = value[step]
    return value


def test_there_are_enough_templates():
    assert len(TEMPLATES) >= 40
    assert len({template["name"] for template in TEMPLATES}) == len(TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template["name"])
def test_it_loads(template, tmp_path, own_folder, request):
    if template["name"] in OF_TRANSFORMERS_5 and transformers.__version__.startswith("4."):
        pytest.skip("arguments that transformers 4 takes or does not have")
    if template["name"] in MISTAKEN:
        request.applymarker(pytest.mark.xfail(reason=MISTAKEN[template["name"]], strict=True))
    folder = tmp_path / "templates"
    for name, text in {"main.yaml": template["text"], **template.get("files", {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("{folder}", str(tmp_path)))
    environment = ConfigEnvironment(folder, policy=Policy())
    config = environment.load("main.yaml", **template.get("vars", {}))
    target = "trainer_callbacks" if "types" in template else template.get("target")
    built = config.construct(target, context_vars=template.get("context"))
    if "types" in template:
        assert [type(callback).__name__ for callback in built] == template["types"]
    if "expect" in template:
        assert plain(built) == template["expect"]
    if "keys" in template:
        assert list(built) == template["keys"]
    if "keys_count" in template:
        assert len(built) == template["keys_count"]
    if "same" in template:
        assert len({id(at(built, path)) for path in template["same"]}) == 1
    if "differ" in template:
        assert len({id(at(built, path)) for path in template["differ"]}) == len(template["differ"])
    if "call" in template:
        assert built[template["call"]](*template["call_args"]) == template["call_expect"]


def test_the_seeds_own_callbacks_load_in_one_step_by_following_the_message(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "seed_module").mkdir()
    (tmp_path / "seed_module" / "callbacks.py").write_text(
        "class ModelCheckpointCallback:\n    def __init__(self, save_dir, best=True): self.save_dir = save_dir\n"
        "class EarlyStoppingCallback:\n    def __init__(self, patience=3): self.patience = patience\n"
    )
    (tmp_path / "train.yaml").write_text(
        "trainer_callbacks: &trainer_callbacks !list:@trainer_callbacks\n"
        "    - !singleton:seed_module.callbacks:ModelCheckpointCallback\n"
        "        save_dir: checkpoints\n"
        "    - !singleton:seed_module.callbacks:EarlyStoppingCallback { patience: 5 }\n"
    )
    with pytest.raises(TemplateError) as refused:
        ConfigEnvironment(tmp_path).load("train.yaml").construct("trainer_callbacks")
    followed = refused.value.hint.partition("ConfigEnvironment(..., ")[2].partition(")")[0]
    environment = eval(f"ConfigEnvironment(tmp_path, {followed})")  # as a person would paste it
    checkpoint, stopping = environment.load("train.yaml").construct("trainer_callbacks")
    assert (checkpoint.save_dir, stopping.patience) == ("checkpoints", 5)
