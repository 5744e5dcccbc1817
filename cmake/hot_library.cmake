# A library that runs at each operator: its calls of its own functions are direct, and inlined where that pays. Without
# this they go through a table, since another library could define the same functions.
function(amanda_hot_library target)
  amanda_profiled(${target})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
  endif()
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(${target} PRIVATE LINKER:-Bsymbolic-functions)
  endif()
endfunction()
