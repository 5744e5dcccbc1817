"""How the package meets torch."""

import torch


def test_another_torch_is_refused(monkeypatch, says):
    from amanda import _build, _torch_driver

    monkeypatch.setattr(_build, "TORCH_VERSION", "9.9.0")
    text = (
        f"[torch] this build of amanda is for torch 9.9.0, and torch {torch.__version__} is installed; build "
        "amanda again against it, or install that torch"
    )
    with says(ImportError, text):
        _torch_driver.load()


def test_taken_dispatch_keys_are_reported(fresh_python):
    printed = fresh_python("""
        import torch
        libraries = []
        for key in ("TESTING_ONLY_GenericWrapper", "TESTING_ONLY_GenericMode"):
            library = torch.library.Library("_", "IMPL", key)
            library.fallback(torch.library.fallthrough_kernel)
            libraries.append(library)
        try:
            import amanda
        except Exception as error:
            print(error)
    """)
    assert printed == (
        "[torch] two of the dispatch keys TESTING_ONLY_GenericWrapper, TESTING_ONLY_GenericMode and "
        "DeferredInit must be free, and other libraries have taken them; import amanda without those"
    )
