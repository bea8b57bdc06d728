--[[
Every tenant the registry ever opened.

KEYS[1] registry: hash, see open.lua
Returns the names of the tenants, unsorted.
Errors: NEEDREGISTER registry
]]
if redis.call('EXISTS', KEYS[1]) == 0 then
  return refuse('NEEDREGISTER registry')
end
local names = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  names[#names + 1] = string.match(field, '^tenant:(.*)$')
end
return names
