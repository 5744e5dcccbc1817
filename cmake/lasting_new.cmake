# What a library of ours allocates while an amanda::Lasting exists comes from another arena: see amanda/base/lasting.h.
# The memory may be freed anywhere, so nothing but these libraries' operator new differs. Sanitizers have their own.
function(amanda_lasting_new target)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    return()
  endif()
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/lasting_new.cpp)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/lasting_new.cpp PROPERTIES
                              SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_options(${target} PRIVATE LINKER:--wrap=_Znwm)
endfunction()
