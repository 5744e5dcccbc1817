# Profile-guided builds, by g++. With AMANDA_PROFILE=generate, programs record a profile of the code that runs at each
# operator; with AMANDA_PROFILE=use, this code is compiled with it. scripts/wheels does both.
set(AMANDA_PROFILE "" CACHE STRING "`generate`: programs record a profile; `use`: compile with it")
set(AMANDA_PROFILE_DIR "${PROJECT_BINARY_DIR}/profile" CACHE PATH "The folder of the profile")
set_property(CACHE AMANDA_PROFILE PROPERTY STRINGS "" generate use)

if(NOT AMANDA_PROFILE MATCHES "^(generate|use)?$")
  message(FATAL_ERROR "[build] AMANDA_PROFILE is \"generate\", \"use\", or empty; got \"${AMANDA_PROFILE}\"")
elseif(AMANDA_PROFILE AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "[build] AMANDA_PROFILE needs g++; the compiler is ${CMAKE_CXX_COMPILER_ID}. Leave it empty.")
elseif(AMANDA_PROFILE STREQUAL "use")
  file(GLOB recorded ${AMANDA_PROFILE_DIR}/*.gcda)
  if(NOT recorded)
    message(FATAL_ERROR "[build] AMANDA_PROFILE=use: ${AMANDA_PROFILE_DIR} has no *.gcda files. Build with "
                        "AMANDA_PROFILE=generate and run a program, or name another folder with AMANDA_PROFILE_DIR.")
  endif()
  foreach(file IN LISTS recorded)
    file(SHA256 ${file} checksum)
    string(APPEND checksums ${checksum})
  endforeach()
  string(SHA256 AMANDA_PROFILE_CHECKSUM "${checksums}")
endif()
# Targets that are compiled with a profile and others could not share them.
if(AMANDA_PROFILE)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# The names of profiles, and the checksums in them, must not depend on folders: compile_same_names.sh.
function(amanda_profiled target)
  if(NOT AMANDA_PROFILE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/compile_same_names.sh)
  target_compile_options(${target} PRIVATE -fprofile-prefix-path=${PROJECT_BINARY_DIR})
  if(AMANDA_PROFILE STREQUAL "generate")
    target_compile_options(${target} PRIVATE -fprofile-generate=${AMANDA_PROFILE_DIR} -fprofile-update=prefer-atomic)
    target_link_options(${target} PRIVATE -fprofile-generate)
  else()
    # The definition is for the build tool: with another profile, sources are compiled again. Threads of the autograd
    # engine may still count while the program writes its profile: counts of a function may then contradict each other.
    target_compile_options(${target} PRIVATE -fprofile-use=${AMANDA_PROFILE_DIR} -fprofile-partial-training
                                             -fprofile-correction -Wno-missing-profile
                                             -DAMANDA_PROFILE_CHECKSUM=${AMANDA_PROFILE_CHECKSUM})
  endif()
endfunction()
