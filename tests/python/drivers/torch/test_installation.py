"""How the package meets torch."""

import torch


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


def test_a_torch_without_what_is_relied_on_is_refused(fresh_python):
    printed = fresh_python("""
        import torch
        del torch._C._parse_dispatch_key, torch.autograd.function._SingleLevelFunction
        try:
            import amanda
        except ImportError as error:
            print(error)
    """)
    assert printed == (
        f"[torch] torch {torch.__version__} has no torch.autograd.function._SingleLevelFunction, "
        "torch._C._parse_dispatch_key, which this version of amanda relies on; install torch 2.11, 2.12, 2.13 or 2.14, or "
        "a newer amanda"
    )


def test_a_compiler_without_what_is_relied_on_is_refused(forked_python):
    printed = forked_python("""
        import amanda
        import torch._dynamo
        del torch._dynamo.eval_frame._callback_from_stance
        try:
            with amanda.apply(amanda.Tool()):
                pass
        except ImportError as error:
            print(error)
    """)
    assert printed == (
        f"[torch] torch {torch.__version__} has no torch._dynamo.eval_frame._callback_from_stance, which this version "
        "of amanda relies on; install torch 2.11, 2.12, 2.13 or 2.14, or a newer amanda"
    )
