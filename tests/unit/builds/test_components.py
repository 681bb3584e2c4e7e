"""Components that builds share: what identifies them, that each is built once, and that builds know of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml

from clone import ROOT
from quicbed.builds import components, kit, making
from quicbed.builds.components import COMPONENTS, Component, Place
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import cargo
from quicbed.config import model
from quicbed.config.model import Project

NAMES = list(COMPONENTS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The parts of the repository that builds are a function of, with a patch that turns BoringSSL post-quantum."""
    for name in ("config", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("target", "__pycache__"))
    patch = tmp_path / "workflow" / "crypto" / "patches" / "boringssl" / "zz-test.patch"
    patch.parent.mkdir(exist_ok=True)
    patch.write_text("", encoding="utf-8")
    return tmp_path


def ids(root: Path) -> dict[str, str]:
    project = Project(root)
    return {name: components.component_id(project, name) for name in NAMES}


def changed(root: Path, before: dict[str, str]) -> set[str]:
    after = ids(root)
    return {name for name in before if before[name] != after[name]}


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_the_configuration_knows_every_component_that_builds_share() -> None:
    assert set(get_args(model.Component)) == {name for name, one in COMPONENTS.items() if one.compiles is None}


def test_a_program_of_ours_is_a_function_of_its_crates_and_code(copy: Path) -> None:
    before = ids(copy)
    lock = copy / "workflow/sources/Cargo.lock"
    (crate,) = (p for p in kit.closure(copy, ["quicbed-capture"]) if p["name"] == "parquet")
    lock.write_text(lock.read_text(encoding="utf-8").replace(crate["checksum"], "0" * 64), encoding="utf-8")
    assert changed(copy, before) == {"capture-reader"}
    before = ids(copy)
    append(copy / "workflow/capture/src/main.rs", "// changed\n")
    assert changed(copy, before) == {"capture-reader"}


def test_ids_do_not_depend_on_where_the_repository_is(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(copy, elsewhere, dirs_exist_ok=True)
    assert ids(elsewhere) == ids(copy)


def test_a_component_is_a_function_of_its_own_files(copy: Path) -> None:
    before = ids(copy)
    append(copy / "workflow/crypto/pq/pq.c", "/* changed */\n")
    assert changed(copy, before) == {"openssl-provider"}
    before = ids(copy)
    append(copy / "workflow/crypto/pq/pq.h", "/* changed */\n")
    assert changed(copy, before) == {"openssl-provider", "boringssl-pq"}
    before = ids(copy)
    append(copy / "workflow/crypto/pq/older.c", "/* changed */\n")
    assert changed(copy, before) == {"liboqs-0.9", "liboqs", "openssl-provider"}
    before = ids(copy)
    append(copy / "workflow/crypto/patches/boringssl/zz-test.patch", "\n")
    assert changed(copy, before) == {"boringssl-pq"}


def test_a_component_is_a_function_of_its_source(copy: Path) -> None:
    before = ids(copy)
    lock = copy / "workflow/sources/Cargo.lock"
    (package,) = (p for p in kit.closure(copy, ["oqs-sys"]) if p["name"] == "oqs-sys")
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text.replace(package["checksum"], "0" * 64), encoding="utf-8")
    # the provider is linked with liboqs
    assert changed(copy, before) == {"liboqs", "openssl-provider"}
    before = ids(copy)
    lock = copy / kit.OLDER_LIBOQS / "Cargo.lock"
    (package,) = (p for p in kit.closure(copy, ["oqs-sys"], kit.OLDER_LIBOQS) if p["name"] == "oqs-sys")
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text.replace(package["checksum"], "0" * 64), encoding="utf-8")
    assert changed(copy, before) == {"liboqs-0.9", "liboqs", "openssl-provider"}


def test_a_component_is_a_function_of_its_options(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids(copy)
    monkeypatch.setitem(COMPONENTS, "openssl", replace(COMPONENTS["openssl"], options=["no-quic"]))
    assert changed(copy, before) == {"openssl", "openssl-provider", "picoquic", "picoquic-searched"}


def test_a_package_of_another_layout_is_told_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "aiopquic-9.9.9"
    (source / "third_party" / "picoquic").mkdir(parents=True)
    (source / "third_party" / "picoquic" / "CMakeLists.txt").touch()
    place = Place(Project(ROOT), "picoquic", source, tmp_path, tmp_path, {}, 1, tmp_path / "log")
    with pytest.raises(BuildError) as caught:
        COMPONENTS["picoquic"].build(place)
    told = str(caught.value)
    assert "third_party: has no picoquic/picoquic/picoquic.h, picotls/include/picotls.h; " in told
    assert "workflow/sources/sdists.txt" in told
    assert "\n" not in told


def build_as_usual(place: Place) -> None:
    (place.out / "lib").mkdir()
    shutil.copy(place.source / "source.txt", place.out / "lib")


def build_in_another_way(place: Place) -> None:
    (place.out / "lib").mkdir()
    shutil.copy(place.source / "source.txt", place.out / "lib" / "copy.txt")


def test_a_component_is_a_function_of_its_recipe(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids(copy)
    monkeypatch.setitem(COMPONENTS, "liboqs", replace(COMPONENTS["liboqs"], build=build_in_another_way))
    assert changed(copy, before) == {"liboqs", "openssl-provider"}


DISPATCH = """
#if defined(OQS_ENABLE_KEM_thing_avx2)
#if defined(OQS_DIST_BUILD)
	if (OQS_CPU_has_extension(OQS_CPU_EXT_AVX2) && OQS_CPU_has_extension(OQS_CPU_EXT_BMI2)) {
#endif
"""
BIKE = "".join(
    f"_INLINE_ uint32_t is_{name}_enabled(void)\n{{\n#if X\n\treturn OQS_CPU_has_extension({extension});\n#endif\n}}\n"
    for name, extension in (("avx2", "OQS_CPU_EXT_AVX2"), ("avx512", "OQS_CPU_EXT_AVX512"))
)


def write_liboqs(sources: Path, dispatch: str, bike: str = BIKE) -> Path:
    for file, text in {"thing/kem_thing.c": dispatch, "bike/additional_r4/cpu_features.h": bike}.items():
        (sources / "src/kem" / file).parent.mkdir(parents=True)
        (sources / "src/kem" / file).write_text(text, encoding="utf-8")
    return sources


def test_conditions_of_liboqs_are_found(tmp_path: Path) -> None:
    found = components.dispatch_header(write_liboqs(tmp_path, 2 * DISPATCH))
    usable = "OQS_CPU_has_extension(OQS_CPU_EXT_AVX2) && OQS_CPU_has_extension(OQS_CPU_EXT_BMI2)"
    assert found.startswith(
        f'#if defined(OQS_ENABLE_KEM_thing_avx2)\nQUICBED_DISPATCH(OQS_KEM_alg_thing, "AVX2", {usable})\n#endif\n'
    )
    bike = [line for line in found.splitlines() if "OQS_KEM_alg_bike_l5" in line]
    # the first that holds is told
    assert bike == [
        f'QUICBED_DISPATCH(OQS_KEM_alg_bike_l5, "{name}", OQS_CPU_has_extension(OQS_CPU_EXT_{extension}))'
        for name, extension in (("AVX-512", "AVX512"), ("AVX2", "AVX2"))
    ]


@pytest.mark.parametrize(
    ("dispatch", "bike", "problem"),
    [
        (DISPATCH + DISPATCH.replace("BMI2", "BMI1"), BIKE, "OQS_ENABLE_KEM_thing_avx2.* has several conditions"),
        (DISPATCH, BIKE.replace("avx512", "avx10"), "does not tell when BIKE takes AVX2 and AVX-512"),
    ],
)
def test_conditions_that_are_not_understood_fail(tmp_path: Path, dispatch: str, bike: str, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        components.dispatch_header(write_liboqs(tmp_path, dispatch, bike))


def test_an_unknown_component_is_refused(copy: Path) -> None:
    with pytest.raises(BuildError, match="there is no `wolfssl`, only liboqs, openssl"):
        components.component_id(Project(copy), "wolfssl")


@pytest.fixture
def thing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Place], None]], Project]:
    """A repository with a component `thing` of a fetched package, built by a given function."""
    entry = f'\n[[package]]\nname = "thing"\nversion = "1.0.0"\nchecksum = "{"a" * 64}"\n'
    append(copy / "workflow/sources/Cargo.lock", entry)
    package = kit.vendor_directory(Project(copy)) / "thing-1.0.0"
    package.mkdir(parents=True)
    (package / "source.txt").write_text("source\n", encoding="utf-8")
    files = {"source.txt": hashlib.sha256(b"source\n").hexdigest()}
    (package / ".cargo-checksum.json").write_text(json.dumps({"files": files, "package": "a" * 64}), encoding="utf-8")

    def made_by(build: Callable[[Place], None]) -> Project:
        monkeypatch.setitem(COMPONENTS, "thing", Component("thing", build))
        return Project(copy)

    return made_by


def test_a_component_is_built_once_and_leaves_nothing_else(
    thing: Callable[[Callable[[Place], None]], Project], tmp_path: Path
) -> None:
    project = thing(build_as_usual)
    log = tmp_path / "log"
    assert not components.is_built(project, "thing")
    made = components.provide(project, "thing", jobs=1, log=log)
    assert (made / "lib" / "source.txt").read_text(encoding="utf-8") == "source\n"
    told = components.read(project, "thing")
    assert told["package"]["checksum"] == "a" * 64
    assert told["compiler"].keys() == {"gcc", "g++"}
    if shutil.which("gcc"):
        first = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        assert told["compiler"]["gcc"] == first
    marked = (made / "component.json").stat().st_mtime_ns
    assert components.provide(project, "thing", jobs=1, log=log) == made
    assert (made / "component.json").stat().st_mtime_ns == marked
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    assert list((project.build / "work").iterdir()) == []
    listing = components.listing(project, "thing")
    assert listing.read_bytes() == (made / "component.json").read_bytes()
    # the workflow makes it again where it is not in the store any more
    components.forget(project)
    assert listing.is_file()
    shutil.rmtree(made)
    components.forget(project)
    assert not listing.exists()


def test_a_build_that_fails_leaves_no_component(
    thing: Callable[[Callable[[Place], None]], Project], tmp_path: Path
) -> None:
    fail = True

    def build(place: Place) -> None:
        build_as_usual(place)
        if fail:
            place.run("sh", "-c", "echo the compiler is unhappy; exit 3")

    project = thing(build)
    with pytest.raises(BuildError, match="the compiler is unhappy"):
        components.provide(project, "thing", jobs=1, log=tmp_path / "log")
    assert not components.is_built(project, "thing")
    with pytest.raises(BuildError, match=r"component\.json: cannot be read"):
        components.read(project, "thing")
    fail = False
    assert (components.provide(project, "thing", jobs=1, log=tmp_path / "log") / "lib" / "source.txt").is_file()


def test_two_who_need_a_component_at_once_build_it_once(
    thing: Callable[[Callable[[Place], None]], Project], tmp_path: Path
) -> None:
    builders: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def build(place: Place) -> None:
        builders.append(threading.current_thread().name)
        begun.set()
        assert may_end.wait(30)
        build_as_usual(place)

    project = thing(build)
    made: list[Path] = []
    log = tmp_path / "log"
    threads = [
        threading.Thread(target=lambda: made.append(components.provide(project, "thing", jobs=1, log=log)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert len(made) == 4
    assert len(set(made)) == len(builders) == 1


def test_a_changed_source_is_not_built(thing: Callable[[Callable[[Place], None]], Project], tmp_path: Path) -> None:
    project = thing(build_as_usual)
    append(kit.vendor_directory(project) / "thing-1.0.0" / "source.txt", "changed\n")
    with pytest.raises(BuildError, match="differs from the registry's source"):
        components.provide(project, "thing", jobs=1, log=tmp_path / "log")
    assert not components.is_built(project, "thing")


def test_nothing_in_the_environment_changes_a_build(
    thing: Callable[[Callable[[Place], None]], Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CC", "CFLAGS", "CMAKE_GENERATOR", "OPENSSL_CONF", "MAKEFLAGS"):
        monkeypatch.setenv(name, "anything")

    def build(place: Place) -> None:
        place.run("sh", "-c", f'echo "$CC$CFLAGS$CMAKE_GENERATOR$OPENSSL_CONF$MAKEFLAGS" > {place.out}/seen')

    made = components.provide(thing(build), "thing", jobs=1, log=tmp_path / "log")
    assert (made / "seen").read_text(encoding="utf-8") == "\n"


def edit(root: Path, library: str, flavour: str, **keys: object) -> Project:
    """The project with some keys of a library set; `flavour_keys` sets those of a flavour."""
    file = root / "config" / "libraries" / f"{library}.yaml"
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    data["flavours"][flavour] |= keys.pop("flavour_keys", {})
    data |= keys
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return Project(root)


def test_a_build_is_a_function_of_its_components(copy: Path) -> None:
    project = Project(copy)
    before = making.build_id(project, "quinn", "stock")
    project = edit(copy, "quinn", "stock", flavour_keys={"components": ["liboqs"]})
    with_liboqs = making.build_id(project, "quinn", "stock")
    assert with_liboqs != before
    lock = copy / "workflow/sources/Cargo.lock"
    (package,) = (p for p in kit.closure(copy, ["oqs-sys"]) if p["name"] == "oqs-sys")
    lock.write_text(lock.read_text(encoding="utf-8").replace(package["checksum"], "0" * 64), encoding="utf-8")
    assert making.build_id(project, "quinn", "stock") != with_liboqs


def test_who_links_liboqs_compiles_the_interface_to_it(copy: Path) -> None:
    project = edit(copy, "quinn", "noop", flavour_keys={"components": ["liboqs"]})
    before = {flavour: making.build_id(project, "quinn", flavour) for flavour in ("stock", "noop")}
    append(copy / "workflow/crypto/pq/pq.c", "/* changed */\n")
    assert making.build_id(project, "quinn", "noop") != before["noop"]
    assert making.build_id(project, "quinn", "stock") == before["stock"]


def test_a_build_is_a_function_of_every_package_of_the_workspace_it_uses(copy: Path) -> None:
    lock = copy / "workflow/sources/Cargo.lock"
    text = lock.read_text(encoding="utf-8")
    endpoint = 'name = "quicbed-endpoint-quinn"\nversion = "0.1.0"\ndependencies = [\n'
    assert endpoint in text
    without = text.replace(' "quicbed-pq",\n', "")
    lock.write_text(without, encoding="utf-8")
    directory = Path("workflow/crypto/pq/rust")
    assert directory not in kit.workspace_directories(copy, "quicbed-endpoint-quinn")
    lock.write_text(without.replace(endpoint, endpoint + ' "quicbed-pq",\n'), encoding="utf-8")
    assert directory in kit.workspace_directories(copy, "quicbed-endpoint-quinn")
    before = making.build_id(Project(copy), "quinn", "stock")
    append(copy / directory / "src/lib.rs", "// changed\n")
    assert making.build_id(Project(copy), "quinn", "stock") != before


def test_build_scripts_are_told_where_components_are(copy: Path) -> None:
    project = edit(copy, "quiche", "stock", flavour_keys={"components": ["liboqs", "boringssl-pq"]})
    told = cargo.environment(project, project.libraries["quiche"], "stock")
    liboqs, boringssl = (str(components.directory(project, name)) for name in ("liboqs", "boringssl-pq"))
    assert told["QUICBED_LIBOQS"] == liboqs
    assert told["QUICBED_BORINGSSL"] == told["BORING_BSSL_PATH"] == boringssl
    told = cargo.environment(project, project.libraries["quiche"], "noop")
    assert told["BORING_BSSL_PATH"] == str(components.directory(project, "boringssl"))
    assert "QUICBED_LIBOQS" not in told


def test_a_package_that_is_only_a_source_is_known_and_identified(copy: Path) -> None:
    before = making.build_id(Project(copy), "quinn", "stock")
    crates = [*Project(copy).libraries["quinn"].crates, "ngtcp2-sys"]
    project = edit(copy, "quinn", "stock", crates=crates, environment={"NGTCP2_SOURCE": "{ngtcp2-sys}/deps"})
    told = cargo.environment(project, project.libraries["quinn"], "stock")
    (package,) = (p for p in kit.closure(copy, ["ngtcp2-sys"]) if p["name"] == "ngtcp2-sys")
    assert told["NGTCP2_SOURCE"] == f"{kit.vendor_directory(project)}/ngtcp2-sys-{package['version']}/deps"
    assert package in kit.crates_of(copy, project.libraries["quinn"])
    with_source = making.build_id(project, "quinn", "stock")
    assert with_source != before
    lock = copy / "workflow/sources/Cargo.lock"
    lock.write_text(lock.read_text(encoding="utf-8").replace(package["checksum"], "0" * 64), encoding="utf-8")
    assert making.build_id(project, "quinn", "stock") != with_source


def test_a_package_that_is_not_listed_is_no_directory(copy: Path) -> None:
    project = edit(copy, "quinn", "stock", environment={"NGTCP2_SOURCE": "{no-such-package}"})
    with pytest.raises(BuildError, match=r"environment\.NGTCP2_SOURCE: .*no-such-package.* is no package"):
        cargo.environment(project, project.libraries["quinn"], "stock")


@pytest.mark.parametrize(
    ("binary", "features", "expected"),
    [
        ("", [], ["client", "server"]),
        ('[[bin]]\nname = "quicbed-quinn-primitives"\n', [], ["client", "server", "primitives"]),
        ('[[bin]]\nname = "quicbed-quinn-primitives"\nrequired-features = ["pq"]\n', [], ["client", "server"]),
        (
            '[[bin]]\nname = "quicbed-quinn-primitives"\nrequired-features = ["pq"]\n',
            ["pq"],
            ["client", "server", "primitives"],
        ),
    ],
)
def test_primitives_belong_to_a_build_that_has_them(
    copy: Path, binary: str, features: list[str], expected: list[str]
) -> None:
    manifest = copy / "workflow" / "endpoints" / "quinn" / "Cargo.toml"
    manifest.write_text(f'[package]\nname = "quicbed-endpoint-quinn"\n{binary}', encoding="utf-8")
    project = edit(copy, "quinn", "noop", flavour_keys={"features": features})
    assert cargo.programs(project, "quinn", "noop") == expected


def test_bindgen_reads_the_headers_of_a_compiler_with_a_c_library_of_its_own(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As conda's gcc: a machine without the system's headers has those only."""
    program = tmp_path / "bin" / "gcc"
    program.parent.mkdir()
    text = "#!/bin/sh\ncase $1 in -print-sysroot) echo /env/sysroot ;; *) echo /env/lib/gcc/include ;; esac\n"
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    project = Project(copy)
    before = cargo.environment(project, project.libraries["quinn"], "stock")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    told = cargo.environment(project, project.libraries["quinn"], "stock")
    assert told["BINDGEN_EXTRA_CLANG_ARGS"] == "-isystem /env/lib/gcc/include --sysroot=/env/sysroot"
    own = subprocess.run(["/usr/bin/gcc", "-print-sysroot"], capture_output=True, text=True)
    if own.returncode == 0 and not own.stdout.strip("/\n"):
        assert "--sysroot" not in before["BINDGEN_EXTRA_CLANG_ARGS"]
