# Third-party libraries: an installed one first, a pinned download second.
include(FetchContent)

find_package(fmt 9 QUIET)
if(NOT fmt_FOUND)
  FetchContent_Declare(fmt URL https://github.com/fmtlib/fmt/archive/refs/tags/9.1.0.tar.gz
                           URL_HASH SHA256=5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2)
  FetchContent_MakeAvailable(fmt)
endif()

if(AMANDA_BUILD_TESTS)
  find_package(GTest 1.12 QUIET)
  if(NOT GTest_FOUND)
    FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
                                    URL_HASH SHA256=81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2)
    set(INSTALL_GTEST OFF)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()

if(AMANDA_BUILD_PYTHON OR AMANDA_BUILD_TORCH)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
endif()

if(AMANDA_BUILD_TORCH)
  # The torch of the Python at hand, unless CMAKE_PREFIX_PATH names a LibTorch.
  find_path(named_libtorch TorchConfig.cmake PATHS ${CMAKE_PREFIX_PATH} PATH_SUFFIXES share/cmake/Torch Torch NO_DEFAULT_PATH NO_CACHE)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.__version__, 'has CUDA', torch.version.cuda)"
                  OUTPUT_VARIABLE torch_cuda OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT named_libtorch AND NOT Torch_DIR AND torch_cuda MATCHES "^(.*) has CUDA [0-9.]+$")
    set(torch_version ${CMAKE_MATCH_1})
    include(torch_with_cuda)
  elseif(torch_prefix)
    find_package(Torch 2.11 REQUIRED)
  else()
    find_package(Torch 2.11 QUIET)
  endif()
  if(NOT Torch_FOUND AND DEFINED SKBUILD)
    message(FATAL_ERROR "[build] ${Python_EXECUTABLE}, the Python of this build, has no torch. By default pip builds in an "
                        "isolated environment, but Amanda is built for the torch that you use. Install torch, "
                        "scikit-build-core and pybind11, then run:\n"
                        "  pip install --no-build-isolation .")
  elseif(NOT Torch_FOUND)
    message(FATAL_ERROR "[build] ${Python_EXECUTABLE} has no torch. Install torch for it, name another Python with "
                        "-DPython_EXECUTABLE=..., name a LibTorch with -DCMAKE_PREFIX_PATH=..., or build without the PyTorch "
                        "driver with -DAMANDA_BUILD_TORCH=OFF.")
  elseif(Torch_VERSION VERSION_GREATER_EQUAL 2.15)
    message(WARNING "[build] torch ${Torch_VERSION} was found, which is newer than this amanda knows (2.11 to 2.14); if the "
                    "build or `import amanda` fails, install torch 2.14, or take a newer amanda.")
  endif()
endif()

if(AMANDA_BUILD_PYTHON)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_DIR
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(PYBIND11_FINDPYTHON ON)
  find_package(pybind11 3 CONFIG QUIET)
  if(NOT pybind11_FOUND)
    message(FATAL_ERROR "[build] ${Python_EXECUTABLE} has no pybind11 3. Install it:\n"
                        "  ${Python_EXECUTABLE} -m pip install \"pybind11>=3,<4\"")
  endif()
endif()

# Only a header: the library is opened at run time. Without it, amanda::cupti_profiler measures operators, no kernels.
find_path(AMANDA_CUPTI_INCLUDE_DIR cupti.h
          HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include extras/CUPTI/include
          DOC "The folder of cupti.h")
mark_as_advanced(AMANDA_CUPTI_INCLUDE_DIR)
