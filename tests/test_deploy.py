"""deploy/: each command and flag exists, units are sound, paths agree with the project."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from ringline.settings import VARIABLES
from tests.commands import ringline

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.fixture(scope="module")
def flags():
    """The flags that a command has, from its --help."""
    found = {}

    def of(command):
        if command not in found:
            help_text = ringline(command, "--help", env={"COLUMNS": "200", "TERM": "dumb"}).out
            found[command] = set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", help_text))
        return found[command]

    return of


def check_words(words, flags):
    """A command line of ringline: the command exists, and each flag."""
    name, command, *rest = words
    assert name.endswith("ringline")
    used = {word.partition("=")[0] for word in rest if re.match(r"-{1,2}[a-z]", word)}
    assert used <= flags(command), used - flags(command)


def read_unit(path):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


def options_of(text):
    """The options in a line VARIABLE="..." of an environment file or a unit."""
    return dict(re.findall(r'(RINGLINE_\w+_OPTIONS)="?=?([^"\n]*)"?', text))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists(path, flags):
    service = read_unit(path)["Service"]
    words = shlex.split(service["ExecStart"])
    check_words([word for word in words if not word.startswith("$")], flags)
    (variable,) = [word.removeprefix("$") for word in words if word.startswith("$")]
    examples = options_of((DEPLOY / "README.md").read_text())
    check_words([words[0], words[1], *shlex.split(examples[variable])], flags)
    if "Environment" in service and variable in path.read_text().partition("Environment=")[2]:
        defaults = options_of(path.read_text())[variable]
        check_words([words[0], words[1], *shlex.split(defaults)], flags)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_gives_away_nothing_that_it_does_not_need(path):
    service = read_unit(path)["Service"]
    assert service["DynamicUser"] == service["NoNewPrivileges"] == service["ProtectHome"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["SystemCallFilter"] == "@system-service"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(path, tmp_path):
    # It looks whether the program is there, which is not installed under /opt here.
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/ringline/bin/ringline", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    about_ours = [line for line in result.stderr.splitlines() if path.name in line]
    assert (result.returncode, about_ours) == (0, []), result.stderr


def test_the_units_give_the_gatekeeper_time_to_end():
    from ringline.server.limits import STOP_TIMEOUT

    node, api = (read_unit(DEPLOY / f"ringline-{role}.service") for role in ("node", "api"))
    assert float(node["Service"]["TimeoutStopSec"]) > STOP_TIMEOUT
    grace = re.search(r"--grace (\d+)", api["Service"]["ExecStart"])
    assert float(api["Service"]["TimeoutStopSec"]) > float(grace[1])
    assert node["Service"]["KillMode"] == api["Service"]["KillMode"] == "mixed"


def test_a_session_that_runs_out_of_memory_does_not_end_its_node():
    assert read_unit(DEPLOY / "ringline-node.service")["Service"]["OOMPolicy"] == "continue"


def instructions(name):
    """The arguments of an instruction of the Containerfile, in order."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    return [line.removeprefix(f"{name} ") for line in text.splitlines() if line.startswith(name)]


def test_the_image_runs_commands_and_flags_that_exist(flags):
    (entry,), (default,) = instructions("ENTRYPOINT"), instructions("CMD")
    check_words(yaml.safe_load(entry) + yaml.safe_load(default), flags)
    text = (DEPLOY / "Containerfile").read_text()
    (example,) = re.findall(r"-v \S+ (ringline \\\n.*)", text)
    check_words(example.replace("\\\n#", "").split(), flags)


def test_the_image_copies_what_there_is_and_what_the_build_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = []
    for line in instructions("COPY"):
        if not line.startswith("--from"):
            sources += line.split()[:-1]
    assert all((ROOT / source).exists() for source in sources)
    assert {project["readme"], *project["license-files"], "pyproject.toml"} <= set(sources)
    extras = {extra for line in instructions("RUN") for extra in re.findall(r"/src\[(\w+)\]", line)}
    assert extras == {"api"}
    assert extras <= set(project["optional-dependencies"])


def test_the_image_has_a_python_that_the_project_allows():
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for image in instructions("FROM"):
        version = re.search(r"python:(\d+)\.(\d+)-", image)
        assert tuple(map(int, version.groups())) >= tuple(map(int, least[2:].split(".")))


def test_variables_in_deploy_are_settings_of_ringline():
    for path in DEPLOY.iterdir():
        names = set(re.findall(r"RINGLINE_\w+", path.read_text()))
        assert {n for n in names if not n.endswith("_OPTIONS")} <= set(VARIABLES), path.name


def test_the_scrape_file_names_both_roles_and_ports_that_the_units_use():
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["ringline-node", "ringline-api"]
    ports = {target.rpartition(":")[2] for target in jobs[0]["static_configs"][0]["targets"]}
    defaults = options_of((DEPLOY / "ringline-node.service").read_text())["RINGLINE_NODE_OPTIONS"]
    assert ports == set(re.findall(r"--metrics-port (\d+)", defaults))


def test_every_file_of_the_folder_stands_in_its_readme():
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in text
