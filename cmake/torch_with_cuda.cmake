# LibTorch of a Python package of PyTorch with CUDA. PyTorch's own CMake files need a CUDA toolkit that they find, because they
# enable CUDA as a language; no file of Amanda is compiled by nvcc. The targets have what PyTorch's have.
#
# Takes torch_prefix and torch_version; sets Torch_FOUND, Torch_VERSION, TORCH_INSTALL_PREFIX and TORCH_LIBRARIES.
string(REGEX REPLACE "\\+.*" "" Torch_VERSION "${torch_version}")
if(Torch_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "[build] torch ${torch_version} was found; Amanda needs torch 2.11 or newer.")
endif()
get_filename_component(TORCH_INSTALL_PREFIX "${torch_prefix}/../.." ABSOLUTE)
foreach(library c10 torch_cpu)
  find_library(AMANDA_${library}_LIBRARY ${library} PATHS ${TORCH_INSTALL_PREFIX}/lib REQUIRED NO_DEFAULT_PATH)
  mark_as_advanced(AMANDA_${library}_LIBRARY)
  add_library(${library} SHARED IMPORTED)
  set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${AMANDA_${library}_LIBRARY})
endforeach()
set_target_properties(
  torch_cpu
  PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INSTALL_PREFIX}/include;${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include"
             INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED;USE_RPC;USE_TENSORPIPE"
             # CUDA's libraries are in other packages of Python, and found when a program runs.
             INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined"
             INTERFACE_LINK_LIBRARIES c10)
set(TORCH_LIBRARIES torch_cpu)
set(Torch_FOUND TRUE)
