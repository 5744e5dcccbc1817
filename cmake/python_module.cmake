# `target`, installed in `folder`, finds at run time the libraries in the folders that follow. All are inside the prefix.
function(amanda_install_rpath target folder)
  foreach(libraries IN LISTS ARGN)
    file(RELATIVE_PATH path /${folder} /${libraries})
    string(REGEX REPLACE "/$" "" entry "$ORIGIN/${path}")
    list(APPEND rpath ${entry})
  endforeach()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}")
endfunction()

# Makes an extension module a part of the Python package.
function(amanda_python_module module)
  amanda_lasting_new(${module})
  amanda_install_rpath(${module} ${AMANDA_PACKAGE_DIR} ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS ${module} LIBRARY DESTINATION ${AMANDA_PACKAGE_DIR})
endfunction()

# The same for one that links LibTorch. Its name in Python is `amanda.` and its own: see drivers/torch/builds.py.
function(amanda_torch_python_module module)
  amanda_lasting_new(${module})
  amanda_install_rpath(${module} ${AMANDA_TORCH_PACKAGE_DIR} ${AMANDA_TORCH_LIBDIR} ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS ${module} LIBRARY DESTINATION ${AMANDA_TORCH_PACKAGE_DIR})
endfunction()
