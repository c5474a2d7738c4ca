"""Stacks: short names, the project's own line, code without a file."""

import os
import sysconfig

import pytest

from cudamem_testing.model.stacks import Frame, Locator, Stack, is_library

STANDARD = sysconfig.get_path("stdlib")
PLACES = Locator("/home/me/project")


@pytest.mark.parametrize(
    ("file", "short", "origin"),
    [
        ("/home/me/project/model/layers.py", "model/layers.py", "project"),
        (
            "/home/me/project/.venv/lib/python3.11/site-packages/torch/nn/functional.py",
            "torch/nn/functional.py",
            "library",
        ),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py", "library"),
        ("lib/python3.12/site-packages/torch/functional.py", "torch/functional.py", "library"),
        (f"{STANDARD}/threading.py", "threading.py", "library"),
        ("/opt/python/lib/python3.13/contextlib.py", "contextlib.py", "library"),
        ("lib/python3.13t/contextlib.py", "contextlib.py", "library"),
        ("/elsewhere/checkout/package/module.py", "package/module.py", "project"),
        ("programs.py", "programs.py", "project"),
        (r"C:\Users\me\Lib\site-packages\torch\x.py", "torch/x.py", "library"),
        ("/tmp/torchinductor_me/ab/cabqz.py", "<torch.compile>", "generated"),
        ("<eval_with_key>.17", "<torch.fx>", "generated"),
        ("<string>", "<string>", "generated"),
        ("", "<unknown>", "generated"),
        ("<frozen importlib._bootstrap>", "importlib/_bootstrap.py", "library"),
        ("/tmp/ipykernel_4711/123.py", "<notebook>", "project"),
        ("<ipython-input-3-abc>", "<notebook>", "project"),
        ("<stdin>", "<stdin>", "project"),
    ],
)
def test_files_become_short_and_get_an_origin(file, short, origin):
    frame = PLACES.frame((file, 7, "f"))
    assert (frame.file, frame.origin) == (short, origin)


def test_the_package_itself_is_a_library():
    import cudamem_testing.model.stacks as module

    frame = Locator(os.getcwd()).frame((module.__file__, 1, "f"))
    assert (frame.file, frame.origin) == ("cudamem_testing/model/stacks.py", "library")


def test_without_a_root_files_are_known_by_their_last_two_names():
    assert Locator("").frame(("/home/me/project/model.py", 1, "f")).file == "project/model.py"


def test_the_projects_line_is_found_behind_library_frames():
    stack = PLACES.stack(
        [
            ("/v/lib/python3.12/site-packages/torch/nn/functional.py", 2140, "softmax"),
            ("/home/me/project/attention.py", 88, "Attention.forward"),
            ("/v/lib/python3.12/site-packages/torch/nn/modules/module.py", 1500, "_call_impl"),
            ("/home/me/project/test_attention.py", 12, "test_forward"),
        ]
    )
    assert stack.line == "attention.py:88 in Attention.forward"
    assert stack.library == "torch/nn/functional.py softmax"
    assert str(stack.caller) == "test_attention.py:12 in test_forward"
    assert str(stack).splitlines()[0] == "torch/nn/functional.py:2140 in softmax"


def test_line_and_library_call_of_a_stack():
    own = PLACES.stack([("/home/me/project/a.py", 1, "f")])
    assert (own.line, own.library, own.caller) == ("a.py:1 in f", "", None)
    alone = PLACES.stack([("/v/lib/python3.12/site-packages/torch/x.py", 5, "g")])
    assert (alone.line, alone.library) == ("torch/x.py:5 in g", "")
    assert (Stack().line, Stack().library, str(Stack())) == ("(no Python stack)", "", "(no Python stack)")


def test_an_anonymous_function_is_skipped_for_its_named_caller():
    library = "/v/lib/python3.12/site-packages/torch/nn/modules/module.py"
    here = ("/home/me/project/a.py", 1, "f")
    assert PLACES.stack([(library, 5, "Module.cuda.<locals>.<lambda>"), (library, 4, "_apply"), here]).library == (
        "torch/nn/modules/module.py _apply"
    )
    assert PLACES.stack([(library, 5, "<lambda>"), here]).library == "torch/nn/modules/module.py <lambda>"


def test_a_mode_that_passes_calls_on_is_no_library_call():
    here = [("/home/me/project/a.py", line, f"f{line}") for line in (1, 2)]
    mode = ("/v/lib/python3.12/site-packages/torch/utils/_device.py", 109, "DeviceContext.__torch_function__")
    linear = ("/v/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "Linear.forward")
    assert PLACES.stack([mode, linear, *here]).library == "torch/nn/modules/linear.py Linear.forward"
    stack = PLACES.stack([mode, *here])
    assert (stack.library, stack.line, str(stack.called_from)) == ("", "a.py:1 in f1", "a.py:2 in f2")


def test_the_caller_of_a_helper_is_the_next_project_frame():
    library = ("/v/lib/python3.12/site-packages/torch/x.py", 5, "g")
    project = [("/home/me/project/a.py", line, f"f{line}") for line in (1, 2, 3)]
    stack = PLACES.stack([library, project[0], library, project[1], project[2]])
    assert (str(stack.called_from), str(stack.caller)) == ("a.py:2 in f2", "a.py:3 in f3")
    assert PLACES.stack(project[:1]).called_from is None
    assert Stack().called_from is None


def test_comprehensions_belong_to_the_function_around_them():
    bare = PLACES.stack([("/home/me/project/a.py", 4, "<listcomp>"), ("/home/me/project/a.py", 3, "build")])
    assert bare.line == "a.py:4 in build"
    nested = PLACES.stack(
        [
            ("/home/me/project/a.py", 5, "<genexpr>"),
            ("/home/me/project/a.py", 4, "<listcomp>"),
            ("/home/me/project/a.py", 3, "f"),
        ]
    )
    assert list(map(str, nested.frames)) == ["a.py:5 in f"]  # and is no caller of it
    assert PLACES.frame(("/home/me/project/a.py", 4, "Net.build.<locals>.<listcomp>")).function == "Net.build"
    assert PLACES.frame(("/home/me/project/a.py", 4, "test.<locals>.<lambda>")).function == "test.<lambda>"
    other = PLACES.stack([("/home/me/project/a.py", 4, "<listcomp>"), ("/home/me/project/b.py", 3, "build")])
    assert other.line == "a.py:4 in <listcomp>"


def test_a_frame_without_line_or_function_is_its_file():
    assert str(Frame("a.py", 0, "")) == "a.py"
    assert str(Frame("a.py", 0, "f")) == "a.py in f"


def test_what_is_written_on_a_line_of_the_project(tmp_path):
    (tmp_path / "model.py").write_text("def f():\n    return 1  # one\n", encoding="utf-8")
    places = Locator(str(tmp_path))
    assert places.source(Frame("model.py", 2, "f")) == "return 1  # one"
    assert places.source(Frame("model.py", 3, "f")) == ""
    assert places.source(Frame("gone.py", 2, "f")) == ""
    assert places.source(Frame("model.py", 2, "f", "library")) == ""


def test_a_file_of_a_library_is_known_without_a_project() -> None:
    assert [is_library(file) for file in (os.__file__, pytest.__file__, "/project/model.py", __file__)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_file_without_folder_is_searched_on_the_python_path() -> None:
    """As torch's profiler names files."""
    locator = Locator("/project")
    assert locator.frame(("torch/nn/functional.py", 3, "relu")) == Frame("torch/nn/functional.py", 3, "relu", "library")
    assert locator.frame(("json/decoder.py", 3, "decode")).origin == "library"
    assert locator.frame(("nowhere/to/be.py", 3, "found")) == Frame("to/be.py", 3, "found", "project")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((), False),
        ((Frame("test_a.py", 3, "test_a"),), False),
        ((Frame("work.py", 7, "filling"), Frame("threading.py", 1032, "_bootstrap", "library")), True),
        ((Frame("work.py", 7, "filling"), Frame("threading.py", 966, "Thread._bootstrap", "library")), True),
        ((Frame("threading.py", 1032, "_bootstrap", "library"), Frame("test_a.py", 3, "test_a")), False),
        ((Frame("work.py", 7, "filling"), Frame("threading.py", 1075, "_bootstrap_inner", "library")), False),
    ],
)
def test_in_thread(frames, expected):
    assert Stack(frames).in_thread is expected
