--[[
Where does a reader of the stream stand? Run before it reads, after each reconnect and while it is idle.

KEYS[1] meta  KEYS[2] events
ARGV[1] incarnation the reader follows, or ''
ARGV[2] id of the last event it has, '0-0' for none, or '$' for "from now on"
Returns {incarnation, id to read after, n of that event}: the next event carries n + 1.
Errors: TERMMISMATCH lost | incarnation <held> | trimmed <first id kept> | rewritten <tail>
]]
local meta = redis.call('HMGET', KEYS[1], 'incarnation', 'events', 'tail')
if not meta[1] then
  return refuse('TERMMISMATCH lost')
end
if ARGV[1] ~= '' and ARGV[1] ~= meta[1] then
  return refuse('TERMMISMATCH incarnation ' .. meta[1])
end
local tail = meta[3] or '0-0'
local after = ARGV[2] == '$' and tail or ARGV[2]
if after == tail then
  return { meta[1], tail, meta[2] }
end
if compare_ids(after, tail) > 0 then
  return refuse('TERMMISMATCH rewritten ' .. tail)
end
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if not first then
  return refuse('TERMMISMATCH lost')
end
if after == '0-0' and first[2][4] == '1' then
  return { meta[1], after, '0' }
end
if compare_ids(after, first[1]) < 0 then
  return refuse('TERMMISMATCH trimmed ' .. first[1])
end
local entry = redis.call('XRANGE', KEYS[2], after, after)[1]
if not entry then
  return refuse('TERMMISMATCH rewritten ' .. tail)
end
return { meta[1], after, entry[2][4] }
